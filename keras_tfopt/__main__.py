"""The registry from a shell: `python -m keras_tfopt list` and `python -m keras_tfopt info NAME`."""

from __future__ import annotations

import argparse
import os
import sys

from keras_tfopt import registry


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_tfopt", description="What optimizers there are, and what they do."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="names, with a line of description each")
    listing.add_argument("filter", nargs="*", help="patterns with * and ?")
    listing.add_argument("--exclude", nargs="+", default=[], metavar="PATTERN")
    listing.add_argument("--source", choices=registry.SOURCES)
    choice = argparse.BooleanOptionalAction
    listing.add_argument("--row-gradients", action=choice, help="those that leave rows alone")
    listing.add_argument("--second-order", action=choice, help="of more than a diagonal matrix")
    about = commands.add_parser("info", help="all that is known of one")
    about.add_argument("name")
    options = parser.parse_args(arguments)
    try:
        status = run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # by `| head`; nothing is left to write to, also for the interpreter
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return status


def run(options: argparse.Namespace) -> int:
    """Run what was asked for; return its exit status."""
    if options.command == "info":
        print(registry.info(options.name))
        return 0
    found = registry.list_optimizers(
        options.filter or "*",
        exclude=options.exclude,
        with_description=True,
        row_gradients=options.row_gradients,
        second_order=options.second_order,
        source=options.source,
    )
    if not found:
        print("No optimizer is like this.", file=sys.stderr)
        return 1
    width = max((len(name) for name, _ in found))
    for name, description in found:
        print(f"{name:{width}}  {description}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
