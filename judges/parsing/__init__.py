"""Parsing of judge models' answers: objects, sentences, quotations."""
