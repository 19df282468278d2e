"""Settings as a command line has them: each by its path, each value as the text that `--set` reads back."""

import json

from ..training import Config


def settings(config: Config) -> dict[str, object]:
    """Every setting by its path, such as "optimizer.lr"; options one by one, since they are set one by one."""
    found: dict[str, object] = {}
    for section, values in config.as_dict().items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if (section, name) == ("model", "options"):
                found |= {f"{section}.{name}.{option}": chosen for option, chosen in value.items()}
            else:
                found[f"{section}.{name}"] = value
    return found


def spelt(value: object) -> str:
    """The text that stands for a value."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)
