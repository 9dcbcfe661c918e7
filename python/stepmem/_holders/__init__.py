"""The heap analyzer: finds the objects of the program that hold ever more memory, when the exporter requests it."""
