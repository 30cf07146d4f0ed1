"""What has to be settled before Keras and its backend are imported."""

import os

# float64 exists on JAX only with x64 on. Here it is on for the whole run, so that the contract
# can be checked at 1e-12; the tests say every dtype, so float32 stays float32. What users have,
# JAX without x64, runs in the subprocesses of test_cross_backend.py.
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "slow: more than a few seconds; left out of `make test-fast`"
    )


def pytest_report_header(config):
    import keras

    return f"keras {keras.__version__}, backend {keras.backend.backend()}"
