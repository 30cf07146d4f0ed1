"""Checkpoints from a shell: `python -m keras_tfopt.legacy inspect` and `convert`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import keras

from keras_tfopt import legacy
from keras_tfopt.engine import nested
from keras_tfopt.legacy.table import TABLE


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        (_inspect if options.command == "inspect" else _convert)(options)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m keras_tfopt.legacy",
        description="Checkpoints of tf.train.Saver (TensorFlow 1).",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="what is in a checkpoint, and what it means")
    convert = commands.add_parser("convert", help="a checkpoint as a file of Keras")
    for command in (inspect, convert):
        add = command.add_argument
        add("prefix", help="path without .index, or a folder")
        add("--model", required=command is convert, help="a .keras file")
        named = "as legacy.get takes it (lazyadam, LARSOptimizer), wrappers as outer(inner)"
        add("--optimizer", metavar="NAME", help=named)
        argument = "an argument of the optimizer, such as learning_rate=0.1; may be repeated"
        add("--set", action="append", default=[], metavar="ARGUMENT=VALUE", help=argument)
        renamed = "a name or scope that is called otherwise here; an empty NEW leaves it out"
        add("--map", action="append", default=[], metavar="OLD=NEW", help=renamed)
        add("--swapped", action="store_true", help="written by swapping_saver()")
    convert.add_argument("--out", required=True, help="a .weights.h5 or .keras file")
    convert.add_argument("--loose", action="store_true", help="restore what fits")
    return parser


def _inspect(options: Any) -> None:
    if options.optimizer and not options.model:
        raise ValueError("--optimizer needs a --model, whose variables it is for")
    model = _model(options.model) if options.model else None
    legacy.inspect_checkpoint(
        options.prefix, model, _optimizer(options), _map(options), swapped=options.swapped
    )


def _convert(options: Any) -> None:
    if not options.out.endswith((".weights.h5", ".keras")):
        raise ValueError(f"--out must end with .weights.h5 or .keras. Received: {options.out!r}")
    model, optimizer = _model(options.model), _optimizer(options)
    if optimizer is not None:
        # Compile, so that the file holds the optimizer. The loss is never used.
        model.compile(optimizer=optimizer.keras, loss="mse")
    strict, swapped = not options.loose, options.swapped
    print(
        legacy.load_checkpoint(
            options.prefix, model, optimizer, _map(options), strict, swapped=swapped
        )
    )
    (model.save_weights if options.out.endswith(".weights.h5") else model.save)(options.out)
    print(f"Written: {options.out}")


def _model(path: str) -> keras.Model:
    return keras.saving.load_model(path, compile=False)


def _pairs(option: str, form: str, given: list[str]) -> list[list[str]]:
    """Split what was given as `NAME=VALUE`, or raise an error."""
    for one in given:
        if "=" not in one:
            raise ValueError(f"{option} must have the form {form}. Received: {one!r}")
    return [one.split("=", 1) for one in given]


def _map(options: Any) -> dict[str, str | None] | None:
    return {old: new or None for old, new in _pairs("--map", "OLD=NEW", options.map)} or None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _optimizer(options: Any) -> Any:
    pairs = _pairs("--set", "ARGUMENT=VALUE", options.set)
    given = {name: _value(text) for name, text in pairs}
    if not options.optimizer:
        if given:
            raise ValueError("--set needs an --optimizer, whose arguments they are")
        return None
    names = nested(options.optimizer)
    if not names:
        raise ValueError(f"--optimizer must close its parentheses. Received: {options.optimizer!r}")
    optimizer = None
    for cls in reversed([legacy.get(name) for name in names]):
        around: dict[str, Any] = {} if optimizer is None else {"opt": optimizer}
        row = TABLE.get(cls.__name__)  # an optimizer of Keras takes any arguments
        own = {n: given.pop(n) for n in list(given) if row is None or n in row.arguments}
        optimizer = cls(**around, **own)
    if given:
        raise ValueError(f"No constructor of {options.optimizer!r} takes {sorted(given)}")
    return optimizer


if __name__ == "__main__":
    sys.exit(main())
