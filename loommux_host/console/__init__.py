"""The console: the page that a browser gets, as files beside these modules, and how it is sent.

Owns the page's files, their policy and the login, and the gateway that shows all servers of
a user in one page. Knows no kernel: what is shown comes from the JSON API. Called by
`server.http_app`, `api` (for the login) and ``loommux console``.
"""
