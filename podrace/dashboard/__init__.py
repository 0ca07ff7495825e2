"""Serves a web page that shows tournaments and controls them: `podrace dashboard` (extra `podrace[dashboard]`).

podrace/dashboard/
  gateway.py          serves pages and JSON; wires the modules below
  settings.py         where it listens, its token, TLS
  access.py           decides whether a request may be answered: host names, origins, tokens
  entrance/           decides who may use it, and whose rights its calls have
  guarding.py         the middleware that applies those decisions, and the protective headers
  answers.py          builds JSON and errors
  live.py             the health check of a container
  parameters.py       reads bounded parameters of requests
  reading.py          handlers that read
  streaming.py        handlers that stream changes
  changing.py         handlers that change something
  feed.py             follows one tournament
  feed_cache.py       opens and closes feeds
  points.py           the scores of all submissions, in little memory
  downsampling.py     reduces curves to the width of a chart
  logs.py             reads the logs of an embedded mesh
  curves.py, hyperparameters.py, lineage.py, views.py    what the pages show
  on_demand/          what takes long: reports of a champion, and videos of episodes
  assets/             the pages: HTML, style and ES modules without a build; the chart library uPlot

The gateway is a client of the public API like any other (`podrace.client`). Each of its calls has the rights of the
reader that asked: the user of the command, or a person who has signed in. The page shows the error of a call that
was refused.
"""
