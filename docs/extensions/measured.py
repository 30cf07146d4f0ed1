"""A directive that shows what a benchmark has printed, of each backend: `{measured} dense`.

The files are those that benchmarks write, kept in `docs/measured`. With the option `plot`, a
picture of the ratios comes first.
"""

import json
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parents[1]
NAMES = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}


class Measured(SphinxDirective):
    required_arguments = 1
    option_spec = {"plot": directives.flag, "only": directives.unchanged}

    def run(self):
        name = self.arguments[0]
        found = [json.loads(path.read_text("utf-8")) for path in files_of(name)]
        if not found:
            raise self.error(f"docs/measured has no {name}_*.json")
        for path in files_of(name):
            self.env.note_dependency(str(path))
        blocks = [f"{where(one['machine'])}:\n\n{self.shown(one['table'])}" for one in found]
        if "plot" in self.options:
            draw({one["machine"]["backend"]: one["measured"] for one in found}, name)
            blocks.insert(0, f"![Ratios to peers](/measured/{name}.svg)")
        container = nodes.container()
        container += self.parse_text_to_nodes("\n\n".join(blocks))
        return [container]

    def shown(self, table):
        """Return a table, or its rows that begin with what the option `only` lists."""
        if "only" not in self.options:
            return table
        head, rows = table.splitlines()[:2], table.splitlines()[2:]
        chosen = tuple(f"| {one.strip()} " for one in self.options["only"].split(","))
        return "\n".join([*head, *(row for row in rows if row.startswith(chosen))])


def files_of(name):
    """Return the results of a benchmark, a file for each backend."""
    return [path for b in NAMES if (path := DOCS / "measured" / f"{name}_{b}.json").exists()]


def where(machine):
    """Return in words where something was measured."""
    backend = machine["backend"]
    versions = f"{NAMES[backend]} {machine[backend]}, Keras {machine['keras']}"
    processors = ", ".join(machine[n] for n in ("processor", "accelerator") if n in machine)
    return f"{versions}, Python {machine['python']}, {machine['cores']} cores, {processors}"


def draw(found, name):
    """Draw ratios as bars, those of all backends side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = list(dict.fromkeys(n.split(" / ")[0] for measured in found.values() for n in measured))
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(labels) * len(found) / 2 + 1.2))
    height = 0.8 / len(found)
    for number, (backend, measured) in enumerate(found.items()):
        ratios = {name.split(" / ")[0]: ratio for name, ratio in measured.items()}
        places = [labels.index(label) + (number + 0.5) * height - 0.4 for label in ratios]
        axes.barh(places, list(ratios.values()), 0.9 * height, label=NAMES[backend])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("time of keras_tfopt / time of the peer")
    axes.legend(loc="lower right")
    figure.savefig(DOCS / "measured" / f"{name}.svg", bbox_inches="tight")
    pyplot.close(figure)


def setup(app):
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True}
