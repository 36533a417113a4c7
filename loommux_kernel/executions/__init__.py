"""What may run, whose code is running, and how it ended.

Owns the gate's rules, the context variable that carries the execution, and the state that an
error stands for. Knows no ipykernel. Called by everything above it in a
kernel, the record store too.
"""
