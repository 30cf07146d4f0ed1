"""Checkpoints from a shell: `python -m keras_tfopt.legacy inspect` and `convert`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import keras

from keras_tfopt import legacy
from keras_tfopt.legacy.table import TABLE

_AROUND = "opt"  # the argument of wrappers for what is inside


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "inspect":
            _inspect(options)
        else:
            _convert(options)
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
        command.add_argument("prefix", help="path without .index, or a folder")
        command.add_argument("--model", required=command is convert, help="a .keras file")
        command.add_argument(
            "--optimizer",
            metavar="NAME",
            help="as legacy.get takes it (lazyadam, LARSOptimizer), wrappers as outer(inner)",
        )
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="ARGUMENT=VALUE",
            help="an argument of the optimizer, such as learning_rate=0.1; may be repeated",
        )
        command.add_argument(
            "--map",
            action="append",
            default=[],
            metavar="OLD=NEW",
            help="a name or scope that is called otherwise here; an empty NEW leaves it out",
        )
        command.add_argument("--swapped", action="store_true", help="written by swapping_saver()")
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
        # A loss that nobody asks for: the file is to hold the optimizer.
        model.compile(optimizer=optimizer.keras, loss="mse")
    report = legacy.load_checkpoint(
        options.prefix,
        model,
        optimizer,
        _map(options),
        strict=not options.loose,
        swapped=options.swapped,
    )
    print(report)
    (model.save_weights if options.out.endswith(".weights.h5") else model.save)(options.out)
    print(f"Written: {options.out}")


def _model(path: str) -> keras.Model:
    return keras.saving.load_model(path, compile=False)


def _map(options: Any) -> dict[str, str | None] | None:
    pairs = [one.partition("=") for one in options.map]
    for old, sign, new in pairs:
        if not sign:
            raise ValueError(f"--map must have the form OLD=NEW. Received: {old + new!r}")
    return {old: new or None for old, _, new in pairs} or None


def _optimizer(options: Any) -> Any:
    given = {}
    for one in options.set:
        name, sign, text = one.partition("=")
        if not sign:
            raise ValueError(f"--set must have the form ARGUMENT=VALUE. Received: {one!r}")
        try:
            given[name] = json.loads(text)
        except ValueError:
            given[name] = text
    if not options.optimizer:
        if given:
            raise ValueError("--set needs an --optimizer, whose arguments they are")
        return None
    opened = options.optimizer.rstrip(")")
    classes = [legacy.get(name.strip()) for name in opened.split("(")]
    if len(options.optimizer) - len(opened) != len(classes) - 1:
        raise ValueError(f"--optimizer must close its parentheses. Received: {options.optimizer!r}")
    optimizer = None
    for cls in reversed(classes):
        around: dict[str, Any] = {} if optimizer is None else {_AROUND: optimizer}
        takes = _arguments_of(cls)
        own = {name: given.pop(name) for name in list(given) if takes is None or name in takes}
        optimizer = cls(**around, **own)
    if given:
        raise ValueError(f"No constructor of {options.optimizer!r} takes {sorted(given)}")
    return optimizer


def _arguments_of(cls: Any) -> Any:
    """Names of the arguments of a class of the table; None where any are taken."""
    return TABLE[cls.__name__].arguments if cls.__name__ in TABLE else None


if __name__ == "__main__":
    sys.exit(main())
