"""How moments are written for people, one package a language."""
