"""Decides who may use a dashboard, and with whose rights it calls the mesh.

podrace/dashboard/entrance/
  reader.py      whose rights the calls for a request have
  callers.py     who a caller is by the answer of the mesh, as pages show it
  url_token.py   one reader: the holder of the token in the URL, with the rights of the command
  sign_in.py     one reader for each person who has signed in with a token of the mesh (`--sign-in`)
  sessions.py    the sessions of these persons
  attempts.py    limits how often a machine may try to sign in

A gateway has one `Entrance`, which the middleware asks about each request.
"""
