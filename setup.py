"""The one C file. Where it cannot be compiled the package still installs, and runs on the Python kernel."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "goqueue.record._kernel",
            ["src/goqueue/record/_kernel.c"],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
