"""Configuration of the documentation: `make docs`."""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS / "extensions")]

import keras_tfopt

project = "keras_tfopt"
author = "The keras_tfopt contributors"
copyright = author
release = version = keras_tfopt.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "markdown_docstrings",
    "mathml",
    "made_pages",
    "measured",
]
exclude_patterns = ["extensions"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"keras_tfopt\.engine\.step\.moving\.Mover"),  # which `Rule` derives from
    ("py:class", r"GATE_\w+|collections\.abc\.\w+|keras_tfopt\.legacy\.checkpoints\..*"),
    ("py:class", r"keras_tfopt\.migrate\.report\.Row"),
]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
templates_path = ["templates"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"keras_tfopt {release}"
html_static_path = ["static"]
html_css_files = ["wide.css"]
# A summary is fetched from its page, which browsers refuse where pages are opened from a disk.
html_show_search_summary = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

linkcheck_anchors = False  # many are made by scripts
linkcheck_timeout = 20
linkcheck_retries = 2

# Pages of the site for files of the repository that its documents link to.
PAGES = {
    "guides/README.md": "guides/index",
    "guides/errors.md": "errors",
    "guides/optimizers.md": "gallery/index",
    "guides/tf1_workers.md": "migration/tensorflow1_workers",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "README.md": "index",
}


def linked(text):
    """Return Markdown in which links to files of the repository lead to pages of the site."""

    def page(found):
        words, target = found.groups()
        file = re.sub(r"^(\.\./|\./)+", "", target.partition("#")[0])
        for place in (file, f"guides/{file}"):
            if place in PAGES:
                return f"[{words}](/{PAGES[place]}.md)"
            if re.fullmatch(r"guides/\w+\.py", place) and (ROOT / place).exists():
                return f"[{words}](/{place.removesuffix('.py')}.md)"
            if re.fullmatch(r"docs/[\w/]+\.md", place) and (ROOT / place).exists():
                return f"[{words}](/{place.removeprefix('docs/')})"
        return words if file and (ROOT / file).is_file() else found[0]

    return re.sub(r"\[([^]]+)\]\(([^)\s]+)\)", page, text)


def fold(app, page, template, context, doctree):
    """Unfold the branch of a page only: the list of all pages on each took half of a build."""
    if whole := context.get("toctree"):
        context["toctree"] = lambda **options: whole(**options | {"collapse": True})


def setup(app):
    def read(app, name, source):
        source[0] = linked(source[0])

    def include(app, path, name, source):
        source[0] = linked(source[0])

    app.connect("source-read", read)
    app.connect("include-read", include)
    app.connect("html-page-context", fold, priority=100)  # before Furo's
