"""Qualifies a machine for podrace: runs the parts of the check in processes of agentpod, and shows what they found.

podrace/qualification/
  findings.py     one line of the report, its JSON, and the exit code
  parts.py        the parts and their time limits
  supervision.py  runs each part in a child process with a time limit
  page.py         the report as text

What is measured is in `agentpod.qualification`, which imports torch.
"""
