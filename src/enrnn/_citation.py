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
}


def citation(*objects: nn.Module) -> str:
    """BibTeX for everything the given modules are made of; for the ENRNN paper if none is given.

    >>> print(enrnn.citation(model))
    """
    from .layers import ENRNN, ENRNNCell
    from .matrices import Cayley, EigenvalueNormalized

    keys = set() if objects else {"enrnn"}
    for position, given in enumerate(objects):
        if not isinstance(given, nn.Module):
            raise TypeError(f"citation() takes modules, got {type(given).__name__} ({given!r}) at position {position}")
        for module in given.modules():
            if isinstance(module, ENRNN | ENRNNCell) and module.nonlinearity == "modrelu":
                keys.add("modrelu")
            if isinstance(module, Cayley):
                keys.add("scornn")
            if isinstance(module, EigenvalueNormalized):
                keys.add("enrnn")
    return "\n\n".join(entry for key, entry in _ENTRIES.items() if key in keys)
