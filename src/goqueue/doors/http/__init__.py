"""The door for HTTP: JSON over Litestar and uvicorn, as the OpenAPI document at /openapi.json describes it."""
