"""A runnable demonstration: a tiny MLA model and a serving engine on the CPU.

Nothing outside this folder and the tests may depend on it.
"""
