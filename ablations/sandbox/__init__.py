"""The inside of the sandbox: what runs in the process that runs generated code.

Knows Linux; not what the code is for. `ablations.sandbox.programs` is the way in. Everything
here runs under ``python -I -S``, so it imports the standard library only, and this file and those
of the packages above it must stay free of imports.
"""
