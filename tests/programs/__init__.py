"""Programs that the tests run as processes of their own, so that they can be killed, stopped and signalled."""
