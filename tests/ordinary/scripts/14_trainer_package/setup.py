from setuptools import find_packages, setup

REQUIRED_PACKAGES = ["torch>=2.0", "numpy"]

setup(
    name="trainer",
    version="0.1",
    install_requires=REQUIRED_PACKAGES,
    packages=find_packages(),
    include_package_data=True,
    description="My training application.",
)
