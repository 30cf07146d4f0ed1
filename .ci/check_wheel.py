"""Check the wheel in dist/: its content, and that it works where only one backend is installed.

python .ci/check_wheel.py BACKEND
"""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("tensorflow", "jax", "torch")

# What runs in the new environment, outside the checkout. One exact step shows that the engine runs.
USE = """
import importlib.util, sys
import keras, keras_tfopt

backend, version, prefix = sys.argv[1:]
assert keras.backend.backend() == backend, keras.backend.backend()
assert keras_tfopt.__version__ == version, keras_tfopt.__version__
assert keras_tfopt.__file__.startswith(prefix), keras_tfopt.__file__
others = {"tensorflow", "jax", "torch"} - {backend}
found = [name for name in others if importlib.util.find_spec(name)]
assert not found, f"also installed: {found}"

variable = keras.Variable([1.0, 2.0])
optimizer = keras_tfopt.Momentum(learning_rate=0.5)
optimizer.build([variable])
optimizer.apply([keras.ops.convert_to_tensor([1.0, 0.0])], [variable])
assert keras.ops.convert_to_numpy(variable).tolist() == [0.5, 2.0], variable
print(f"keras_tfopt {version} works with keras {keras.__version__} on {backend} alone")
"""


def check_content(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names}
    version = wheel.name.split("-")[1]
    expected = {"keras_tfopt", f"keras_tfopt-{version}.dist-info"}
    assert roots == expected, f"the wheel holds {sorted(roots)}, expected {sorted(expected)}"
    assert "keras_tfopt/py.typed" in names, "py.typed is missing in the wheel"
    return version


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in BACKENDS:
        sys.exit(f"usage: check_wheel.py {'|'.join(BACKENDS)}")
    backend = sys.argv[1]
    (wheel,) = (ROOT / "dist").glob("*.whl")
    version = check_content(wheel)
    print(f"{wheel.name}: content is right; installing it with {backend} alone ...", flush=True)

    with tempfile.TemporaryDirectory(prefix="keras_tfopt-wheel-") as directory:
        # Resolved, because that is how the interpreter will see its own prefix.
        prefix = Path(directory).resolve() / "venv"
        venv.create(prefix, with_pip=True)
        python = str(prefix / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        pip += ["-c", str(ROOT / "constraints.txt")]
        if backend == "torch":
            subprocess.run([*pip, "torch"], check=True)
        subprocess.run([*pip, f"{wheel}[{backend}]"], check=True)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env |= {"KERAS_BACKEND": backend, "KERAS_HOME": directory, "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [python, "-c", USE, backend, version, str(prefix)]
        return subprocess.run(command, cwd=directory, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
