"""Pages that the code writes: the gallery, the guides, and the list of public names.

They are written into `docs/gallery`, `docs/guides` and `docs/api` before Sphinx reads its sources.
Pictures of schedules are drawn into `docs/user_guide/pictures`.
"""

import concurrent.futures
import importlib
import inspect
import multiprocessing
import os
import textwrap
from pathlib import Path

import keras
import nbformat
import notebooks

import keras_tfopt
from integration import catalogue
from integration.documentation import kept, names, pictures, runs
from integration.guides import BACKENDS, KEPT
from keras_tfopt import addons

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
ABSTRACT = (keras_tfopt.Rule, keras_tfopt.Wrapper, keras_tfopt.distributed.OverWorkers)
WRITTEN = set()  # by this process
SCOPES = {"element": "any elements", "variable": "a variable", "model": "all variables"}


def write(path, *blocks):
    """Write blocks of Markdown with empty lines between them; leave a file that is so already."""
    text = "\n\n".join(block.strip("\n") for block in blocks if block) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITTEN.add(path)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def remove_others(folder, kept=()):
    """Remove pages of an earlier build that this one does not have."""
    for path in folder.rglob("*.md"):
        if path not in WRITTEN and path.stem not in kept:
            path.unlink()


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in lines)


def toctree(entries, *options):
    return "\n".join(["```{toctree}", *(f":{option}:" for option in options), *entries, "```"])


# ---- Gallery -------------------------------------------------------------------------------------


def card(name, found):
    """Return the page of an optimizer: what the registry knows, and its pictures."""
    info = keras_tfopt.info(name)
    cls = info.optimizer_class
    given = [
        key if value is inspect.Parameter.empty else f"{key}={value!r}"
        for key, value in info.defaults.items()
    ]
    call = f"keras_tfopt.{cls.__name__}({', '.join(given)})"
    if len(call) > 80:
        lines = textwrap.fill(", ".join(given), 76, break_long_words=False)
        call = f"keras_tfopt.{cls.__name__}(\n{textwrap.indent(lines, '    ')}\n)"
    facts = {
        "Name": f'`keras_tfopt.get("{name}")`',
        "State": f"{info.bytes_per_parameter:.3g} bytes a parameter (float32, a large matrix)",
        "One update sees": SCOPES.get(info.scope, ""),
        "Row gradients": info.row_gradients,
        "Slots": info.slots,
        "Paper": info.paper,
        "Stands for": ", ".join(f"`{original}`" for original in info.originals),
        "Differences": info.differences,
    }
    other = keras_tfopt.info(runs.compared_with(name)).optimizer_class.__name__
    averages = " with the averages" if found["of_averages"] else ""
    dashed = f" The dashed line is `{other}`." if runs.compared_with(name) != name else ""
    return (
        f"# {cls.__name__}",
        info.description,
        f"```python\n{call}\n```",
        info.formula,
        table(["", ""], [[f"**{key}**", text] for key, text in facts.items() if text]),
        f"All arguments: {{py:obj}}`{names.path_of(cls)}`.",
        "## On digits",
        f"![Loss by epoch on scanned digits](pictures/{name}-digits.svg)",
        f"`{runs.call(name, runs.ON_DIGITS.get(name, {}), found['rate'])}` reaches an accuracy of "
        f"{found['accuracy']:.3f}{averages}, on images that it was not trained on.{dashed} "
        "[How the picture was made](index.md).",
        "## On two functions",
        f"![Paths on the functions of Rosenbrock and Beale](pictures/{name}-paths.svg)",
    )


def drawn(name, folder):
    """Draw the pictures of an optimizer; return what its page says of them."""
    pictures.draw_curve(name, folder)
    pictures.draw_paths(name, folder)
    found = runs.curve(name)
    return {
        "rate": float(found.rate),
        "loss": float(found.losses[-1]),
        "accuracy": found.accuracy,
        "of_averages": bool(found.of_averages),
    }


def draw(name):
    """Write the page of an optimizer with its pictures; return its row of the table."""
    folder = DOCS / "gallery"
    found = kept.pictures(name, drawn, folder / "pictures")
    write(folder / f"{name}.md", *card(name, found))
    info = keras_tfopt.info(name)
    is_rule = issubclass(info.optimizer_class, keras_tfopt.Rule)
    return is_rule, [
        f"[{info.optimizer_class.__name__}]({name}.md)",
        info.description,
        catalogue.rows_of(info.optimizer_class) if is_rule else "",
        f"{info.bytes_per_parameter:.3g}",
        f"{found['loss']:.4f}",
        f"{found['accuracy']:.3f}" + ("*" if found["of_averages"] else ""),
    ]


def gallery(cards, made):
    """Write the page of all optimizers; `made` has the rows of their table."""
    folder = DOCS / "gallery"
    rows = {kind: [row for is_rule, row in made if is_rule == kind] for kind in (True, False)}
    header = ["optimizer", "what it does", "row gradients", "bytes", "loss", "accuracy"]
    x, _, x_other, y_other = runs.digits()
    write(
        folder / "index.md",
        "# Gallery",
        f"Every optimizer trains the same network (one hidden layer of {runs.HIDDEN} tanh units) "
        f"on the {len(x) + len(x_other):,} scanned digits of scikit-learn, 8 by 8 pixels: "
        f"{len(x):,} images in batches of {runs.BATCH} for {runs.EPOCHS} epochs. The learning rate "
        f"is the one of {', '.join(f'{rate:.2g}' for rate in runs.RATES)} with the lowest loss on "
        f"the other {len(x_other)} images. Other arguments are defaults, unless the page of the "
        f"optimizer shows them. Wrappers are around `{runs.INSIDE}`.",
        "This shows how each behaves. It ranks nothing: the task is small, there is one seed, and "
        f"accuracies have a standard error of about {(0.97 * 0.03 / len(y_other)) ** 0.5:.3f}. "
        f"Paths on functions of two numbers take {runs.STEPS} steps without noise.",
        "Bytes are those of the state for each parameter of a large matrix in float32. The loss is "
        "that of the last epoch, on the images trained on. \\* marks an accuracy of averages.",
        "## Optimizers",
        "{.small}\n" + table(header, rows[True]),
        "## Wrappers",
        "{.small}\n" + table(header, rows[False]),
        toctree(cards, "hidden"),
    )


# ---- Guides --------------------------------------------------------------------------------------


def guide(path):
    """Write a guide as a page, and as a notebook; return the entry of the list."""
    facts = notebooks.facts(path)
    blocks = [
        text if kind == "markdown" else f"```python\n{text}\n```"
        for kind, text in notebooks.cells(path)[1:]
    ]
    files = {"Notebook": f"{path.stem}.ipynb", "Script": f"../../guides/{path.name}"}
    links = " ".join(f"{{download}}`{name} <{file}>`" for name, file in files.items())
    write(
        DOCS / "guides" / f"{path.stem}.md",
        f"# {facts['Title']}",
        facts["Description"],
        links,
        *blocks,
        *printed(path.stem),
    )
    nbformat.write(notebooks.notebook(path), DOCS / "guides" / f"{path.stem}.ipynb")
    return facts


def printed(name):
    """Return what a guide printed and drew when it last ran in full, if that is kept."""
    text = KEPT / f"{name}.txt"
    if not text.exists():
        return []
    where, _, output = text.read_text("utf-8").partition("\n")
    picture = f"![What the guide drew](../measured/guides/{name}.png)"
    return ["## What it printed", f"{where}:", f"```text\n{output.strip()}\n```", picture]


def guides():
    (DOCS / "guides").mkdir(exist_ok=True)
    facts = {name: guide(ROOT / "guides" / f"{name}.py") for name in BACKENDS}
    write(
        DOCS / "guides" / "index.md",
        "# Guides",
        "Each guide is a script. Most train on real data, which comes with a package. Its notebook "
        "does the same in Colab or Jupyter, and installs what it needs.",
        table(
            ["guide", "what it shows"],
            [
                [f"[{fact['Title']}]({name}.md)", fact["Description"]]
                for name, fact in facts.items()
            ],
        ),
        toctree(list(facts), "hidden"),
    )


# ---- Public names --------------------------------------------------------------------------------


def api():
    """Write a page for every module, and one for every class and function."""
    sections = []
    for module in names.MODULES:
        found = [entry for entry in names.public() if entry.module == module]
        if not found:
            continue
        folder = DOCS / "api" / module
        for entry in found:
            kind = "class" if inspect.isclass(entry.item) else "function"
            options = ":members:\n" if kind == "class" else ""
            if entry.item in (*ABSTRACT, keras_tfopt.legacy.Optimizer):
                options += ":inherited-members: Optimizer, BaseOptimizer\n"
            elif entry.item in addons.CLASSES.values():  # what they have more than ours
                ours = inspect.getmro(entry.item.__bases__[-1])
                options += f":inherited-members: {', '.join(c.__name__ for c in ours)}\n"
            write(
                folder / f"{file_of(entry)}.md",
                f"# {entry.name}",
                f"```{{eval-rst}}\n.. auto{kind}:: {entry.path}\n"
                f"{textwrap.indent(options, '   ')}```",
            )
        first = [(inspect.getdoc(entry.item) or "").split("\n", 1)[0] for entry in found]
        rows = [
            [f"[{entry.name}]({module}/{file_of(entry)}.md)", line]
            for entry, line in zip(found, first, strict=True)
        ]
        write(
            DOCS / "api" / f"{module}.md",
            f"# {module}",
            (importlib.import_module(module).__doc__ or "").split("\n", 1)[0],
            table(["name", "what it is"], rows),
            toctree([f"{module}/{file_of(entry)}" for entry in found], "hidden"),
        )
        sections.append(module)
    write(DOCS / "api" / "index.md", "# API", toctree(sections))


def file_of(entry):
    """Return the file of a name; `Info` and `info` are one name to some file systems."""
    alike = [e.path for e in names.public() if e.path.lower() == entry.path.lower()]
    return f"{entry.name}{'-' * alike.index(entry.path)}"


def make(app):
    if keras.backend.backend() != "jax":
        raise RuntimeError("The pictures are made on JAX. Set KERAS_BACKEND=jax.")
    cards = keras_tfopt.list_optimizers(exclude="keras.*")
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), spawned) as pool:
        rows = pool.map(draw, cards)
        api()
        guides()
        pages = DOCS / "user_guide"
        pictures.draw_page(pages / "schedules.md")
        pictures.draw_growth(pages / "embeddings.md", pages / "pictures" / "embedding.svg")
        gallery(cards, list(rows))
    remove_others(DOCS / "api")
    remove_others(DOCS / "guides")
    remove_others(DOCS / "gallery", cards)


def setup(app):
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
