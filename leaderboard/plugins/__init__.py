"""Calls the generators and updaters that a tournament's user wrote, and checks their answers.

plugin_pool.py       connects to plugins and calls them, one request at a time
runtime_folder.py    the folder in which the sockets of their child processes lie
function_process.py  describes the child process of a function
function_server.py   the child process that serves a function
host.py              a program that runs these processes under another user id
plugin_users.py      user ids of these processes, if the leaderboard runs as root
requests.py          what a plugin receives
judgement.py         checks an updater's answer and applies it to the candidate
"""
