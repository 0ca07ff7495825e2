"""Examines whether a service of a third party meets the requirements of its contract (`podrace conform`).

The requirements are those of the comments in `protos/`. Imports neither torch nor click.

podrace/conformance/
  examine.py      runs the examination of a contract within its time, and returns the report
  findings.py     requirements, findings and the report (pure)
  requirements/       what each contract requirements, in its words (data)
  calls.py        calls with deadlines, whose failures are answers; error_details.py checks details of errors
  simulator.py    a SimulatorService; stepping.py has one of its streams, rejections.py what it must refuse
  evolution.py    a generator or updater; boards.py has the tournaments, proposals.py the rules of a proposal
  evaluator.py    an EvaluatorService
  worker.py       a WorkerService; slots.py has the rollouts, worker_policies.py further policies
  pod.py          a pod, which calls; fakes/ has the services that it calls and judges its calls
  sessions.py     opens the connections of each examination
  spaces.py       spaces, their sizes and random actions (pure)
  policies.py     small policies: blocks, outputs and digests (pure)
  tensors.py      a TensorService in memory, which records what is written
"""
