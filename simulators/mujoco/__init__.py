"""Gymnasium's MuJoCo tasks: simulator.py is what callers see, batch.py steps all lanes, tasks.py has the formulas."""
