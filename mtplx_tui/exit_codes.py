"""What the program's exit code tells a shell."""

OK = 0
NOT_PASSED = 1
BAD_INPUT = 2
FAILED = 3
INTERNAL = 70
INTERRUPTED = 130
SIGNALLED = 128
"""Plus n, where signal n ended the program."""

HELP = (
    "Exit codes: 0 done; 1 a check did not pass; 2 the command line or the prompt can not be used; "
    "3 the model, the engine or a file failed; 70 an error in the program itself; 130 stopped by Ctrl-C; "
    "128+n ended by signal n."
)
