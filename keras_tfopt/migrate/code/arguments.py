"""Rewrite arguments of optimizers of other packages as optimizers here take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from keras_tfopt.legacy.table import TABLE
from keras_tfopt.migrate.code.names import DECAYING, DROPPED, LEGACY_CLASSES, POSITIONAL, RATES
from keras_tfopt.migrate.code.survey import code_of

Tell = Callable[[str], None]

_COMMON = {"beta1": "beta_1", "beta2": "beta_2", "use_nesterov": "nesterov"}
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def of_keras(
    name: str, args: Sequence[cst.Arg], schedules: str, tell: Tell, is_legacy: bool = False
) -> list[cst.Arg]:
    """Return arguments of an optimizer of Keras 2 as Keras 3 takes them.

    Args:
        name: The class.
        args: The arguments.
        schedules: The dotted name of `keras.optimizers.schedules` in this program.
        tell: Function that is called with what cannot be decided.
        is_legacy: Whether it is the legacy class, whose order of arguments never changed.
    """
    given = _Arguments(args)
    if given.has_stars:
        tell("arguments in `*` or `**` are not seen: `lr` and `decay` must not be among them")
    if not is_legacy and given.positions > POSITIONAL[name]:
        tell(f"versions of Keras differ in the order of arguments of {name}: name them")
    for dropped in DROPPED:
        given.pop(dropped)
    if is_legacy:
        given.rename("schedule_decay", "momentum_decay")
    elif given.pop("schedule_decay") is not None:
        tell("`schedule_decay` is fixed in Keras 3: keras_tfopt.migrate.Nadam(momentum_decay=...)")
    given.rename("lr", "learning_rate")
    if _is_none(given.value("epsilon")):
        given.pop("epsilon")
    given.change("learning_rate", 0, _as_float)
    given.change("momentum", 1 if name == "SGD" else None, _as_float)
    _decay(name, given, schedules, tell)
    if name == "Lion" and not given.has_stars and given.value("learning_rate", 0) is None:
        given.add("learning_rate", RATES[name])
    clipping = [option for option in _CLIPPING if given.value(option) is not None]
    if len(clipping) > 1:
        tell(f"Keras 3 takes one of {clipping} only")
    return given.args


def of_apply_gradients(args: Sequence[cst.Arg], tell: Tell) -> list[cst.Arg]:
    """Return arguments of `apply_gradients` of Keras 2 as Keras 3 takes them."""
    given = _Arguments(args)
    given.pop("name")
    for name, usual in _AGGREGATION.items():
        value = given.value(name)
        if isinstance(value, cst.Name) and value.value == usual:
            given.pop(name)
        elif value is not None:
            tell(f"Keras 3 has no `{name}`: it sums the gradients of replicas")
    return given.args


def of_legacy(name: str, args: Sequence[cst.Arg], schedules: str, tell: Tell) -> list[cst.Arg]:
    """Return arguments of a class of `tf.keras.optimizers.legacy` as ours take them."""
    given = _Arguments(args)
    names = _ORDER[name]
    if given.positions > names.index("name"):
        given.name_all(names)
    given = _Arguments(of_keras(name, given.args, schedules, tell, is_legacy=True))
    for argument, value in LEGACY_CLASSES[name][1].items():
        if argument == "epsilon" and (given.value("epsilon") or given.positions > 3):
            continue
        if name == "RMSprop":
            momentum = given.value("momentum", 2)
            if momentum is not None and not isinstance(momentum, (cst.Float, cst.Integer)):
                tell("with momentum, `epsilon_in_root` must be True, and else False")
            elif momentum is not None and float(code_of(momentum)):
                continue
        given.add(argument, value)
    return given.args


def of_tf1(name: str, args: Sequence[cst.Arg], tell: Tell) -> list[cst.Arg]:
    """Return arguments of an optimizer of TensorFlow 1 as the rule here takes them."""
    row, given = TABLE[name], _Arguments(args)
    if given.has_stars:
        tell("arguments in `*` or `**` are not seen: they may have other names here")
    if given.positions > 1 or name in DECAYING:
        given.name_all(list(row.arguments))
    # Classes with decay also have the arguments of the class that they extend.
    for theirs, ours in {**_COMMON, **row.renamed}.items():
        given.rename(theirs, ours)
    for theirs in ("use_locking", *row.arguments):
        if theirs == "use_locking" or theirs.endswith("_name"):  # of slots, in files
            given.pop(theirs)
    given.change("name", None, _as_keras_name)
    return given.args


def of_addons(args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Return arguments of an optimizer of TensorFlow Addons; one has another name here."""
    given = _Arguments(args)
    given.rename("weight_decay_rate", "weight_decay")
    return given.args


def _decay(name: str, given: _Arguments, schedules: str, tell: Tell) -> None:
    decay = given.value("decay")
    if decay is None:
        return
    given.pop("decay")
    if _is_none(decay) or _is_zero(decay):
        return
    rate = given.value("learning_rate", 0)
    if rate is None:
        rate = cst.parse_expression(RATES.get(name, "0.001"))
    elif not isinstance(rate, (cst.Float, cst.Integer)):
        text = code_of(rate)
        tell(f"`decay` has become a schedule, in which `{text}` must be a number")
    schedule = cst.Call(
        cst.parse_expression(f"{schedules}.InverseTimeDecay"),
        [cst.Arg(rate, comma=COMMA), cst.Arg(cst.Integer("1"), comma=COMMA), cst.Arg(decay)],
    )
    if given.value("learning_rate", 0) is None:
        given.add("learning_rate", schedule)
    else:
        given.change("learning_rate", 0, lambda _: schedule)


# The order of arguments of the classes in `tf.keras.optimizers.legacy`.
_BETAS = ["learning_rate", "beta_1", "beta_2", "epsilon"]
_ORDER = {
    "SGD": ["learning_rate", "momentum", "nesterov", "name"],
    "RMSprop": ["learning_rate", "rho", "momentum", "epsilon", "centered", "name"],
    "Adagrad": ["learning_rate", "initial_accumulator_value", "epsilon", "name"],
    "Adadelta": ["learning_rate", "rho", "epsilon", "name"],
    "Adam": [*_BETAS, "amsgrad", "name"],
    "Adamax": [*_BETAS, "name"],
    "Nadam": [*_BETAS, "name"],
    "Ftrl": [
        *("learning_rate", "learning_rate_power", "initial_accumulator_value"),
        *("l1_regularization_strength", "l2_regularization_strength", "name"),
        *("l2_shrinkage_regularization_strength", "beta"),
    ],
}
# Arguments of `apply_gradients` in Keras 2, with the values for which Keras 3 does the same.
_AGGREGATION = {
    "experimental_aggregate_gradients": "True",
    "skip_gradients_aggregation": "False",
}
COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


class _Arguments:
    """The arguments of a call. Changes keep spaces, comments and order."""

    def __init__(self, args: Sequence[cst.Arg]):
        self.args = list(args)
        self.has_stars = any(arg.star for arg in args)

    @property
    def positions(self) -> int:
        """The number of arguments that come by position."""
        return sum(arg.keyword is None and not arg.star for arg in self.args)

    def _place(self, name: str, position: int | None = None) -> int | None:
        for place, arg in enumerate(self.args):
            if arg.keyword is not None and arg.keyword.value == name:
                return place
        return position if position is not None and position < self.positions else None

    def value(self, name: str, position: int | None = None) -> cst.BaseExpression | None:
        """Return the value of a keyword, or of the argument at a position."""
        place = self._place(name, position)
        return None if place is None else self.args[place].value

    def change(
        self, name: str, position: int | None, how: Callable[[Any], cst.BaseExpression]
    ) -> None:
        """Change the value of an argument, if it is given."""
        place = self._place(name, position)
        if place is not None:
            arg = self.args[place]
            self.args[place] = arg.with_changes(value=how(arg.value))

    def rename(self, old: str, new: str) -> None:
        """Give a keyword another name."""
        place = self._place(old)
        if place is not None and self._place(new) is None:
            self.args[place] = self.args[place].with_changes(keyword=cst.Name(new))

    def name_all(self, names: Sequence[str]) -> None:
        """Pass all arguments by keyword."""
        for place in range(self.positions):
            self.args[place] = self.args[place].with_changes(
                keyword=cst.Name(names[place]), equal=_EQUAL
            )

    def pop(self, name: str) -> cst.BaseExpression | None:
        """Remove a keyword; return its value."""
        place = self._place(name)
        if place is None:
            return None
        last = place == len(self.args) - 1
        removed = self.args.pop(place)
        if last and self.args:
            self.args[-1] = _ended(self.args[-1], removed)
        return removed.value

    def add(self, name: str, value: str | cst.BaseExpression) -> None:
        """Add a keyword at the end, unless it is given already."""
        if self._place(name) is not None:
            return
        value = cst.parse_expression(value) if isinstance(value, str) else value
        new = cst.Arg(value, keyword=cst.Name(name), equal=_EQUAL)
        stars = [place for place, arg in enumerate(self.args) if arg.star == "**"]
        if stars:
            self.args.insert(stars[0], new.with_changes(comma=COMMA))
            return
        if self.args:
            last = self.args[-1]
            if isinstance(last.comma, cst.Comma):  # on lines of their own
                between = self.args[-2].comma if len(self.args) > 1 else COMMA
                new = new.with_changes(comma=last.comma)
                self.args[-1] = last.with_changes(comma=between)
            else:
                new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
                self.args[-1] = last.with_changes(
                    comma=COMMA, whitespace_after_arg=cst.SimpleWhitespace("")
                )
        self.args.append(new)


def _ended(arg: cst.Arg, last: cst.Arg) -> cst.Arg:
    """Return an argument with what follows the last one, such as a line break.

    It keeps a comment of its own.
    """
    comma = arg.comma
    if not (isinstance(comma, cst.Comma) and "#" in code_of(comma)):
        return arg.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    end: Any = last.whitespace_after_arg
    if isinstance(last.comma, cst.Comma):
        end = last.comma.whitespace_after
    if isinstance(end, cst.ParenthesizedWhitespace):
        first: Any = comma.whitespace_after
        comma = comma.with_changes(whitespace_after=end.with_changes(first_line=first.first_line))
    return arg.with_changes(comma=comma)


def _as_float(value: Any) -> Any:
    return cst.Float(f"{value.value}.0") if isinstance(value, cst.Integer) else value


def _as_keras_name(value: Any) -> Any:
    """Return a name without slashes, which Keras refuses."""
    if isinstance(value, cst.SimpleString) and "/" in value.value:
        return value.with_changes(value=value.value.replace("/", "_"))
    return value


def _is_none(value: Any) -> bool:
    return isinstance(value, cst.Name) and value.value == "None"


def _is_zero(value: Any) -> bool:
    return isinstance(value, (cst.Float, cst.Integer)) and not float(value.value)
