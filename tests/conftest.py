import pytest

# Notebooks that must fail; test_guard.py runs them in a pytest of their own.
collect_ignore_glob = ["canaries/*"]


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        from ddp_course.hardware import count_gpus

        if count_gpus() < 2:
            pytest.skip("needs two GPUs")
