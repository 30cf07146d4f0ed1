"""Formulas as MathML, which browsers draw without a script and without a network."""

from docutils import nodes
from latex2mathml.converter import convert


def mathml(latex, display):
    """Return a formula as MathML; the converter has `align*` for `aligned`."""
    return convert(latex.replace("{aligned}", "{align*}"), display=display).replace("<mi />", "")


def inline(translator, node):
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def displayed(translator, node):
    formula = mathml(node.astext(), "block")
    translator.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
