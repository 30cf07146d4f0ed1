"""The registry from a shell: `python -m keras_tfopt list` and `python -m keras_tfopt info NAME`."""

from __future__ import annotations

import argparse
import sys

from keras_tfopt import registry


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_tfopt", description="What optimizers there are, and what they do."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="names, with a line of description each")
    listing.add_argument("filter", nargs="*", help="patterns with * and ?")
    listing.add_argument("--exclude", nargs="+", default=[], metavar="PATTERN")
    listing.add_argument("--source", choices=registry.SOURCES)
    listing.add_argument("--row-gradients", action="store_true", help="those that leave rows alone")
    listing.add_argument("--second-order", action="store_true")
    about = commands.add_parser("info", help="all that is known of one")
    about.add_argument("name")
    options = parser.parse_args(arguments)
    if options.command == "info":
        try:
            print(registry.info(options.name))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    found = registry.list_optimizers(
        options.filter or "*",
        exclude=options.exclude,
        with_description=True,
        row_gradients=options.row_gradients or None,
        second_order=options.second_order or None,
        source=options.source,
    )
    width = max((len(name) for name, _ in found), default=0)
    for name, description in found:
        print(f"{name:{width}}  {description}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
