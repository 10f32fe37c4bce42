import faulthandler

# A test that hangs shows where.
faulthandler.dump_traceback_later(300, exit=True)
