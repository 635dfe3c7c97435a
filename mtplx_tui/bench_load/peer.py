"""mlx-lm's server as `python -m`, on the BLAS that ours runs on, and on a CPU with dense float32 weights as ours has.

Usage: the arguments of mlx_lm.server.
"""

from typing import Any

from engine import device


def main() -> None:
    device.prepare()
    from mlx_lm import server

    if device.is_cpu():
        server.load = _dense(server.load)
    server.main()


def _dense(load: Any) -> Any:
    """mlx-lm's loader, with the weights made dense behind it."""
    from engine.models.load import to_float32

    def loaded(*arguments: Any, **options: Any) -> Any:
        model, *others = load(*arguments, **options)
        to_float32(model)
        return (model, *others)

    return loaded


if __name__ == "__main__":
    main()
