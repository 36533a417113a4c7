"""What ``loommux doctor`` looks at: this machine, how kernels start and end here, one trial run.

Owns the checks and the advice that goes with each. Changes nothing. Called by
`commands.doctor`.
"""
