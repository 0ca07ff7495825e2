"""Steps Gymnasium's MuJoCo tasks: simulator.py has the interface, batch.py steps the lanes, tasks.py has formulas."""
