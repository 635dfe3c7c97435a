"""What /openapi.json says of the API: the forms of answers and errors, and of what requests may hold."""
