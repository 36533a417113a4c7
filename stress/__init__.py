"""Many clients at one server, random from a seed, each result held to the truth: ``make stress``.

The ways to start and drive servers are those of the tests.
"""
