"""Facts into what is sent: sentences, blocks, images, the fields of structured mode, notebooks.

Owns the wording of results and that each fits into one message. Knows no protocol library and
does no I/O. Called by `mcp` and `api`.
"""
