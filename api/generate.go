package api

// The contract is openapi.yaml; types, gin server and client are generated from it.
//go:generate sh -c "cd contract && go tool oapi-codegen -config models.yaml ../openapi.yaml && go tool oapi-codegen -config gin.yaml ../openapi.yaml"
//go:generate sh -c "cd client && go tool oapi-codegen -config client.yaml ../openapi.yaml"
