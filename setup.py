"""Installs the package that setup.cfg describes."""

from setuptools import setup

setup()
