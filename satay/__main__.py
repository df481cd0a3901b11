"""`python -m satay`: the command line."""

from satay.cli import main

if __name__ == "__main__":
    main()
