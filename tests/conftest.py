import os

import pytest

# As in notebooks/conftest.py.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Notebooks that must fail; test_guard.py runs them in a pytest of their own.
collect_ignore_glob = ["canaries/*"]
TWO_HOSTS = ("tests/test_nodes.py", "notebooks/11_multi_node")


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is nothing to share out
def pytest_xdist_make_scheduler(config, log):
    """Workers take whole files: a module's fixture is one launch, a notebook one kernel."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            # Both build the two hosts, which have one name each: never at the same time.
            return "two hosts" if file in TWO_HOSTS else file

    return ByFile(config, log)


def pytest_runtest_setup(item):
    if mark := item.get_closest_marker("gpu"):
        from ddp_course.hardware import count_gpus

        (needed,) = mark.args
        if count_gpus() < needed:
            pytest.skip(f"needs {needed} GPU{'s' * (needed > 1)}")


@pytest.fixture(scope="session")
def browser_is_there():
    import lab  # and playwright: most tests need neither

    if not lab.browser():
        # Under CI a missing browser is a fault of the set-up, not a reason to look away.
        (pytest.fail if os.environ.get("CI") else pytest.skip)("chromium is not installed")
