"""Implements `podrace init`: writes a commented specification from options or answers.

podrace/cli/init/
  environments.py   what is known about environments: targets, batch sizes, packages
  template.py       the text of a specification; pure
  command.py        the command and its questions
"""
