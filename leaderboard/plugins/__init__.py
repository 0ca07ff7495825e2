"""Calls the generators and updaters that a tournament's user wrote, and checks their answers.

plugin_pool.py       connects to plugins and calls them, one request at a time
runtime_folder.py    the folder in which the sockets of their child processes lie
function_server.py   the child process that serves a function
requests.py          what a plugin receives
judgement.py         checks an updater's answer and applies it to the candidate
"""
