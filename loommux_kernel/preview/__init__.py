"""What a variable is, in a few words, told without running anybody's code.

Called by `running.control_requests`.
"""
