"""Where journals are kept: one module for each database, each of which keeps the protocol of `satay.journal`."""
