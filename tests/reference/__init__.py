"""Slow, readable specifications that the package is compared with.

They import nothing from the package: an error would otherwise be on both sides of a comparison.
"""
