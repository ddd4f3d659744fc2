import os

import pytest

# Notebooks that must fail; test_guard.py runs them in a pytest of their own.
collect_ignore_glob = ["canaries/*"]


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        from ddp_course.hardware import count_gpus

        if count_gpus() < 2:
            pytest.skip("needs two GPUs")


@pytest.fixture(scope="session")
def browser_is_there():
    import lab  # and playwright: most tests need neither

    if not lab.browser():
        # Under CI a missing browser is a fault of the set-up, not a reason to look away.
        (pytest.fail if os.environ.get("CI") else pytest.skip)("chromium is not installed")
