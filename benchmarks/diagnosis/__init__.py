"""How often the diagnosis is right, on sound models and on planted failures, of problems that it was not made with."""
