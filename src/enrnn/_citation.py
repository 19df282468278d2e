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
    "modrelu": """\
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
    from .layers import ENRNN, IRNN, ENRNNCell, OrthogonalRNN
    from .layers._one_matrix import OneMatrixRNN
    from .matrices import SVD, Cayley, EigenvalueNormalized, Exponential, Householder, Schur, SoftMargin, SpectralNorm

    families: dict[type[nn.Module], str] = {
        Cayley: "scornn",
        EigenvalueNormalized: "enrnn",
        Exponential: "exprnn",
        Householder: "ornn",
        SVD: "spectral_rnn",
        SoftMargin: "vorontsov",
        Schur: "nnrnn",
        SpectralNorm: "spectral_norm",
        IRNN: "irnn",
        OrthogonalRNN: "orthogonal",
    }
    keys = {key for kind, key in families.items() if isinstance(module, kind)}
    if isinstance(module, ENRNN | ENRNNCell | OneMatrixRNN) and module.nonlinearity == "modrelu":
        keys.add("modrelu")
    if isinstance(module, Exponential) and module.rebase_every is not None:
        keys.add("dtriv")
    return keys
