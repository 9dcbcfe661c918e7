"""Takes the exporter's port before the exporter starts."""

import http.server

http.server.HTTPServer(("", 9477), http.server.BaseHTTPRequestHandler).serve_forever()
