"""A request from its arrival until its code has run: cells, interrupts, control requests.

Owns how code is run, what a cell sees of the world, and what it cannot have. What is
recorded of it is `capture`'s. Called by the kernel.
"""
