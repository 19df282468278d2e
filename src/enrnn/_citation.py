"""The literature behind what a user composed, as BibTeX."""

from torch import nn

_ENTRIES = {
    "enrnn": """\
@inproceedings{helfrich2020eigenvalue,
  title     = {Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory},
  author    = {Helfrich, Kyle and Ye, Qiang},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year      = {2020}
}""",
    "scornn": """\
@inproceedings{helfrich2018orthogonal,
  title     = {Orthogonal Recurrent Neural Networks with Scaled {C}ayley Transform},
  author    = {Helfrich, Kyle and Willmott, Devin and Ye, Qiang},
  booktitle = {Proceedings of the 35th International Conference on Machine Learning},
  year      = {2018}
}""",
    "urnn": """\
@inproceedings{arjovsky2016unitary,
  title     = {Unitary Evolution Recurrent Neural Networks},
  author    = {Arjovsky, Martin and Shah, Amar and Bengio, Yoshua},
  booktitle = {Proceedings of the 33rd International Conference on Machine Learning},
  year      = {2016}
}""",
    "exprnn": """\
@inproceedings{lezcano2019cheap,
  title     = {Cheap Orthogonal Constraints in Neural Networks: A Simple Parametrization of the Orthogonal and Unitary Group},
  author    = {Lezcano-Casado, Mario and Mart{\\'i}nez-Rubio, David},
  booktitle = {Proceedings of the 36th International Conference on Machine Learning},
  year      = {2019}
}""",
    "dtriv": """\
@inproceedings{lezcano2019trivializations,
  title     = {Trivializations for Gradient-Based Optimization on Manifolds},
  author    = {Lezcano-Casado, Mario},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2019}
}""",
    "ornn": """\
@inproceedings{mhammedi2017efficient,
  title     = {Efficient Orthogonal Parametrisation of Recurrent Neural Networks Using {H}ouseholder Reflections},
  author    = {Mhammedi, Zakaria and Hellicar, Andrew and Rahman, Ashfaqur and Bailey, James},
  booktitle = {Proceedings of the 34th International Conference on Machine Learning},
  year      = {2017}
}""",
    "spectral_rnn": """\
@inproceedings{zhang2018stabilizing,
  title     = {Stabilizing Gradients for Deep Neural Networks via Efficient {SVD} Parameterization},
  author    = {Zhang, Jiong and Lei, Qi and Dhillon, Inderjit S.},
  booktitle = {Proceedings of the 35th International Conference on Machine Learning},
  year      = {2018}
}""",
    "vorontsov": """\
@inproceedings{vorontsov2017orthogonality,
  title     = {On Orthogonality and Learning Recurrent Networks with Long Term Dependencies},
  author    = {Vorontsov, Eugene and Trabelsi, Chiheb and Kadoury, Samuel and Pal, Chris},
  booktitle = {Proceedings of the 34th International Conference on Machine Learning},
  year      = {2017}
}""",
    "nnrnn": """\
@inproceedings{kerg2019nonnormal,
  title     = {Non-normal Recurrent Neural Network (nn{RNN}): Learning Long Time Dependencies while Improving \
Expressivity with Transient Dynamics},
  author    = {Kerg, Giancarlo and Goyette, Kyle and Puelma Touzel, Maximilian and Gidel, Gauthier \
and Vorontsov, Eugene and Bengio, Yoshua and Lajoie, Guillaume},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2019}
}""",
    "scurnn": """\
@inproceedings{maduranga2019complex,
  title     = {Complex Unitary Recurrent Neural Networks Using Scaled {C}ayley Transform},
  author    = {Maduranga, Kehelwala D. G. and Helfrich, Kyle E. and Ye, Qiang},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year      = {2019}
}""",
    "full_capacity_urnn": """\
@inproceedings{wisdom2016full,
  title     = {Full-Capacity Unitary Recurrent Neural Networks},
  author    = {Wisdom, Scott and Powers, Thomas and Hershey, John R. and Le Roux, Jonathan and Atlas, Les},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2016}
}""",
    "eurnn": """\
@inproceedings{jing2017tunable,
  title     = {Tunable Efficient Unitary Neural Networks ({EUNN}) and their Application to {RNN}s},
  author    = {Jing, Li and Shen, Yichen and Dub{\\v{c}}ek, Tena and Peurifoy, John and Skirlo, Scott and LeCun, Yann \
and Tegmark, Max and Solja{\\v{c}}i{\\'c}, Marin},
  booktitle = {Proceedings of the 34th International Conference on Machine Learning},
  year      = {2017}
}""",
    "goru": """\
@article{jing2019gated,
  title   = {Gated Orthogonal Recurrent Units: On Learning to Forget},
  author  = {Jing, Li and Gulcehre, Caglar and Peurifoy, John and Shen, Yichen and Tegmark, Max \
and Solja{\\v{c}}i{\\'c}, Marin and Bengio, Yoshua},
  journal = {Neural Computation},
  year    = {2019}
}""",
    "cgrnn": """\
@inproceedings{wolter2018complex,
  title     = {Complex Gated Recurrent Neural Networks},
  author    = {Wolter, Moritz and Yao, Angela},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2018}
}""",
    "irnn": """\
@article{le2015simple,
  title   = {A Simple Way to Initialize Recurrent Networks of Rectified Linear Units},
  author  = {Le, Quoc V. and Jaitly, Navdeep and Hinton, Geoffrey E.},
  journal = {arXiv:1504.00941},
  year    = {2015}
}""",
    "orthogonal": """\
@inproceedings{henaff2016recurrent,
  title     = {Recurrent Orthogonal Networks and Long-Memory Tasks},
  author    = {Henaff, Mikael and Szlam, Arthur and LeCun, Yann},
  booktitle = {Proceedings of the 33rd International Conference on Machine Learning},
  year      = {2016}
}""",
    "spectral_norm": """\
@inproceedings{miyato2018spectral,
  title     = {Spectral Normalization for Generative Adversarial Networks},
  author    = {Miyato, Takeru and Kataoka, Toshiki and Koyama, Masanori and Yoshida, Yuichi},
  booktitle = {International Conference on Learning Representations},
  year      = {2018}
}""",
    "clockwork": """\
@inproceedings{koutnik2014clockwork,
  title     = {A Clockwork {RNN}},
  author    = {Koutn{\\'i}k, Jan and Greff, Klaus and Gomez, Faustino and Schmidhuber, J{\\"u}rgen},
  booktitle = {Proceedings of the 31st International Conference on Machine Learning},
  year      = {2014}
}""",
    "hmrnn": """\
@inproceedings{chung2017hierarchical,
  title     = {Hierarchical Multiscale Recurrent Neural Networks},
  author    = {Chung, Junyoung and Ahn, Sungjin and Bengio, Yoshua},
  booktitle = {International Conference on Learning Representations},
  year      = {2017}
}""",
    "fsrnn": """\
@inproceedings{mujika2017fast,
  title     = {Fast-Slow Recurrent Neural Networks},
  author    = {Mujika, Asier and Meier, Florian and Steger, Angelika},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2017}
}""",
    "layer_norm": """\
@article{ba2016layer,
  title   = {Layer Normalization},
  author  = {Ba, Jimmy Lei and Kiros, Jamie Ryan and Hinton, Geoffrey E.},
  journal = {arXiv:1607.06450},
  year    = {2016}
}""",
    "zoneout": """\
@inproceedings{krueger2017zoneout,
  title     = {Zoneout: Regularizing {RNN}s by Randomly Preserving Hidden Activations},
  author    = {Krueger, David and Maharaj, Tegan and Kram{\\'a}r, J{\\'a}nos and Pezeshki, Mohammad and Ballas, Nicolas \
and Ke, Nan Rosemary and Goyal, Anirudh and Bengio, Yoshua and Courville, Aaron and Pal, Chris},
  booktitle = {International Conference on Learning Representations},
  year      = {2017}
}""",
    "rnn": """\
@article{elman1990finding,
  title   = {Finding Structure in Time},
  author  = {Elman, Jeffrey L.},
  journal = {Cognitive Science},
  year    = {1990}
}""",
    "lstm": """\
@article{hochreiter1997long,
  title   = {Long Short-Term Memory},
  author  = {Hochreiter, Sepp and Schmidhuber, J{\\"u}rgen},
  journal = {Neural Computation},
  year    = {1997}
}""",
    "gru": """\
@inproceedings{cho2014learning,
  title     = {Learning Phrase Representations using {RNN} Encoder-Decoder for Statistical Machine Translation},
  author    = {Cho, Kyunghyun and van Merri{\\"e}nboer, Bart and Gulcehre, Caglar and Bahdanau, Dzmitry \
and Bougares, Fethi and Schwenk, Holger and Bengio, Yoshua},
  booktitle = {Proceedings of the Conference on Empirical Methods in Natural Language Processing},
  year      = {2014}
}""",
}


def citation(*objects: nn.Module | str) -> str:
    """BibTeX for everything the given modules are made of, or for networks by their names; for the ENRNN paper if none is given.

    >>> print(enrnn.citation(model))
    >>> print(enrnn.citation("exprnn"))
    """
    from .layers import networks

    keys = set() if objects else {"enrnn"}
    for position, given in enumerate(objects):
        if isinstance(given, nn.Module):
            for module in given.modules():
                keys |= _keys(module)
        elif isinstance(given, str) and given in networks():
            keys |= {given, "dtriv"} if given == "exprnn" else {given}
        else:
            raise TypeError(
                f"citation() takes modules and the names of networks ({', '.join(networks())}), "
                f"got {type(given).__name__} ({given!r}) at position {position}"
            )
    return "\n\n".join(entry for key, entry in _ENTRIES.items() if key in keys)


def _keys(module: nn.Module) -> set[str]:
    """What one module, without its parts, is owed to."""
    from .layers import CGRNN, ENRNN, FSRNN, GORU, HMRNN, IRNN, ClockworkRNN, ENRNNCell, LayerNormLSTMCell, OrthogonalRNN
    from .layers._one_matrix import OneMatrixRNN
    from .matrices import (
        SVD,
        Cayley,
        EigenvalueNormalized,
        Exponential,
        Givens,
        Householder,
        Schur,
        SoftMargin,
        SpectralNorm,
        Stiefel,
        UnitaryCayley,
        UnitaryGivens,
        UnitaryProduct,
    )

    families: dict[type[nn.Module], str] = {
        Cayley: "scornn",
        EigenvalueNormalized: "enrnn",
        Exponential: "exprnn",
        Householder: "ornn",
        SVD: "spectral_rnn",
        SoftMargin: "vorontsov",
        Schur: "nnrnn",
        SpectralNorm: "spectral_norm",
        UnitaryCayley: "scurnn",
        UnitaryProduct: "urnn",
        Stiefel: "full_capacity_urnn",
        Givens: "eurnn",
        UnitaryGivens: "eurnn",
        GORU: "goru",
        CGRNN: "cgrnn",
        ClockworkRNN: "clockwork",
        HMRNN: "hmrnn",
        FSRNN: "fsrnn",
        LayerNormLSTMCell: "layer_norm",
        IRNN: "irnn",
        OrthogonalRNN: "orthogonal",
    }
    keys = {key for kind, key in families.items() if isinstance(module, kind)}
    thresholded = isinstance(module, ENRNN | ENRNNCell | OneMatrixRNN | CGRNN | GORU)
    if thresholded and module.nonlinearity in ("modrelu", "paired_modrelu"):
        keys.add("urnn")
    if isinstance(module, HMRNN) and module.layer_norm:
        keys.add("layer_norm")
    if isinstance(module, FSRNN) and (module.zoneout or module.cell_zoneout):
        keys.add("zoneout")
    if isinstance(module, Exponential) and module.rebase_every is not None:
        keys.add("dtriv")
    return keys
